"""Several services as processes on one broker, without the `ryz up` supervisor."""
