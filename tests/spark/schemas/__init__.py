"""Tables whose columns follow a registry."""
