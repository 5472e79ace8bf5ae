"""`plimsoll simulate`: stored sessions under other policies, from the command line."""
