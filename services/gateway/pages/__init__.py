"""The pages that the gateway serves to browsers: the chat and the live view of the cluster."""
