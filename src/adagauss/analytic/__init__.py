"""Streaming closed-form classifiers: ridge regression and LDA solved from sufficient statistics of all images."""
