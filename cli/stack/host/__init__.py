"""What a stack needs of this machine: private directories, free ports, a name, reachable servers."""
