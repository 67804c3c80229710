"""The lease in one Redis or Valkey server."""
