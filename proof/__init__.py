"""What is proven about TPUs without one: `make tpu-proof`, docs/tpu.md."""
