"""`ryz batch`: files of requests that run when there is room."""
