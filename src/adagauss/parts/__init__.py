"""Parts that two or more methods share: representation and its loss terms, memory, drift, classifiers."""
