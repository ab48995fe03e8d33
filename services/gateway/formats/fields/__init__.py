"""What formats share: reading bodies, types and rules of fields, and pieces of answers."""
