"""The documentation site: `docs/`, the pages at the top of the repository, and the OpenAPI document as a reference."""
