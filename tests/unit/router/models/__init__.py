"""What routers know of models that hosts load and put to sleep."""
