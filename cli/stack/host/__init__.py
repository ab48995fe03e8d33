"""Resources of the machine for a stack: private directories, free ports, a name, reachable servers."""
