"""Parser of the commands that train nothing: a mistake is one sentence, and names of options are not guessed."""

import argparse
import re
import sys
from difflib import get_close_matches
from typing import Any, NoReturn


class Arguments(argparse.ArgumentParser):
    """argparse's parser, but what is wrong comes without its usage, and with the nearest option that there is."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Prints the sentence and exits with code 2."""
        if unknown := re.match(r"unrecognized arguments: (--[^\s=]+)", message):
            near = get_close_matches(unknown[1], self._option_string_actions, n=1)
            also = f"; did you mean {near[0]}?" if near else ""
            message = f"there is no option {unknown[1].removeprefix('--')}{also}"
        elif missing := re.match(r"the following arguments are required: (.*)", message):
            message = f"no {missing[1]} given; {self.format_usage().strip()}"
        print(f"error: {' '.join(message.split())} (options: {self.prog} --help)", file=sys.stderr)
        sys.exit(2)
