"""What the project tests itself with: servers, proxies, faults, histories; users tests have ``core/testing``."""
