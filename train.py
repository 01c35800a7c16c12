"""Entry point: ``python train.py fit --config configs/digits_mtl.yaml``."""

from routing_lightning.cli import main

if __name__ == "__main__":
    main()
