"""One file per dataset; each registers its reader when it is imported."""
