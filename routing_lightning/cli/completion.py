"""Completion of words in a shell: commands, options, configs and classes."""

from routing_lightning.cli.configs import config_folder, configs_by_kind
from routing_lightning.cli.describe import class_of_package, names_of_classes, trainer
from routing_lightning.cli.words import TRAINER_COMMANDS

_BASH = """\
_routing_lightning() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" command="${{COMP_WORDS[1]}}"
  [[ "${{COMP_WORDS[0]}}" == python* ]] && {{
    [[ "${{COMP_WORDS[1]}}" == *train.py ]] || {{ COMPREPLY=($(compgen -f -- "$word")); return; }}
    command="${{COMP_WORDS[2]}}"
  }}
  case "$before" in
    *train.py|routing-lightning) COMPREPLY=($(compgen -W "{commands}" -- "$word")); return ;;
    --config|-c) COMPREPLY=($(compgen -W "{configs}" -- "$word") $(compgen -f -- "$word")); return ;;
    options) COMPREPLY=($(compgen -W "{classes}" -- "$word")); return ;;
  esac
  case "$word" in
    -*) case "$command" in {trainer_commands}) COMPREPLY=($(compgen -W "{options}" -- "$word")); return ;; esac ;;
  esac
  COMPREPLY=($(compgen -f -- "$word"))
}}
complete -o filenames -F _routing_lightning routing-lightning python python3 train.py ./train.py
"""

# zsh runs bash's functions after this; the first line for those who have not set up completion themselves.
_ZSH = """\
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -u; }
autoload -Uz bashcompinit && bashcompinit
"""


def script(shell: str) -> str:
    """A script for ``bash`` or ``zsh``, to be evaluated there."""
    from routing_lightning.cli.help import COMMANDS, RUN_OPTIONS

    options = [text.split()[0] for text, _ in RUN_OPTIONS]
    for place, described in (
        ("trainer", trainer()),
        ("model.init_args", class_of_package("RoutedClassifier")),
        ("data.init_args", class_of_package("MultiTaskDataModule")),
    ):
        options += [f"--{place}.{option.name}" for option in described.options] if described else []
    folder = config_folder()
    configs = [str(path) for paths in configs_by_kind(folder).values() for path in paths] if folder else []
    text = _BASH.format(
        commands=" ".join(COMMANDS),
        configs=" ".join(configs),
        classes=" ".join(name for names in names_of_classes().values() for name in names),
        options=" ".join(options),
        trainer_commands="|".join(TRAINER_COMMANDS),
    )
    return text if shell == "bash" else _ZSH + text
