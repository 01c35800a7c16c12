"""A checkpoint is written whole or not at all, and never over the one that it is made from."""

import pytest
import torch

from routing_lightning.errors import UsageError
from routing_lightning.saving import check_new, save_whole


def test_a_mapped_file_may_be_written_over(tmp_path):
    path = tmp_path / "new folder" / "a.ckpt"
    save_whole({"x": torch.ones(10_000)}, path)
    mapped = torch.load(path, weights_only=True, mmap=True)["x"]
    save_whole({"x": torch.zeros(1)}, path)
    assert bool((mapped == 1).all())  # written in place, its pages would be gone
    assert torch.load(path, weights_only=True)["x"].tolist() == [0]
    assert [file.name for file in path.parent.iterdir()] == ["a.ckpt"]


def test_what_cannot_be_written_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.ckpt"
    save_whole({"x": 1}, path)
    with pytest.raises(Exception, match="pickle"):
        save_whole({"x": lambda: None}, path)
    assert torch.load(path, weights_only=True) == {"x": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["a.ckpt"]


def test_folders_and_the_source_itself_are_no_new_file(tmp_path):
    source, link = tmp_path / "a.ckpt", tmp_path / "link.ckpt"
    save_whole({}, source)
    link.symlink_to(source)
    for out in (source, link, tmp_path / "." / "a.ckpt"):
        with pytest.raises(UsageError, match="is the checkpoint that is read"):
            check_new(out, source)
    with pytest.raises(UsageError, match="is a folder; give the path of the new checkpoint, such as"):
        check_new(tmp_path, source)
    assert check_new(tmp_path / "b.ckpt", source) == tmp_path / "b.ckpt"
