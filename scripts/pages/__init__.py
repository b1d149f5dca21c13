"""The generated pages of docs/reference: one module a page, each with `render() -> str`."""
