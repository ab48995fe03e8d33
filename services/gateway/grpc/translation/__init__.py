"""Pure translation between the messages of the protocol and the bodies of the HTTP routes."""
