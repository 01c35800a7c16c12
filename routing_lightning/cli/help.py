"""placeholder"""

QUICK = {}


def answer(words):
    return False
