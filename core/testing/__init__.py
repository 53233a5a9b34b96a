"""What users and their tests may import: conformance suites, servers, and the memory sink."""
