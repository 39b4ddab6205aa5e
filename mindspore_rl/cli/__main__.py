"""Entry point of `python -m mindspore_rl.cli`."""

import sys

from mindspore_rl.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
