"""Speed, memory and scaling, measured side by side. ``python -m benchmarks --help`` says more."""
