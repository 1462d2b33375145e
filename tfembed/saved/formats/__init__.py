"""The layouts of bytes in which tables lie in files, a module for each."""
