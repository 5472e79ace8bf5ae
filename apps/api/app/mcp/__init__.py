"""`plimsoll mcp`: sessions of a running service as tools of the Model Context Protocol."""
