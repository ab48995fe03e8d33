"""The remote guest: any OpenAI-compatible server behind the guest port, by HTTP."""
