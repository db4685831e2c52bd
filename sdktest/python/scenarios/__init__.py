"""Scenarios for the official Python SDK against a running Perigee server."""
