"""offtune: find the fastest DeepSpeed offload configuration that fits a memory budget."""

__version__ = "0.1.0"
