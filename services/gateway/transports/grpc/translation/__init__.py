"""Pure translation between the messages of the protocol and bodies."""
