"""`ryz worker`: one worker group that joins a running stack."""
