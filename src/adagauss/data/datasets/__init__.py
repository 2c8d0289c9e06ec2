"""One file a dataset; each registers its reader by being imported."""
