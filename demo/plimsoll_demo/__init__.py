"""Drives recorded conversations through the running HTTP service and shows what the window did."""
