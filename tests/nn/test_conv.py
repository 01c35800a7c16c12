import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from routing_lightning.errors import UsageError
from routing_lightning.nn import ConvBlocks, ModuleBlocks, conv
from routing_lightning.nn.conv import NORMS


def away_from_kinks(y: torch.Tensor, pool: bool) -> torch.Tensor:
    """Where rounding cannot take ReLU's other branch or another maximum: bool, of the shape of the output."""
    if not pool:
        return y.abs() > 1e-3
    first, second = y.unfold(2, 2, 2).unfold(3, 2, 2).flatten(-2).topk(2).values.unbind(-1)
    return (first < -1e-3) | ((first > 1e-3) & (first - second > 1e-3))


def sample_by_sample(blocks: ConvBlocks, x: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The obvious way: one convolution per sample; what is normalised over a batch is normalised over all of it.

    Returns the outputs and where they are away from kinks, both of one shape.
    """
    size, taken = blocks.blocks[0].shape[-1], [a for a in actions.tolist() if a != blocks.num_blocks]
    moved = x[actions != blocks.num_blocks]
    rows = [F.conv2d(row[None], blocks.blocks[a], padding=size // 2) for row, a in zip(moved, taken, strict=True)]
    if blocks.kind == "shared":
        norm = blocks.norm
        rows = F.batch_norm(torch.cat(rows), None, None, norm.weight, norm.bias, True, 0.1, norm.eps).split(1)
    elif blocks.kind == "group":
        rows = [F.group_norm(y, blocks.groups, *blocks.affine[a]) for y, a in zip(rows, taken, strict=True)]
    elif blocks.kind == "block":
        found = list(rows)
        for block in set(taken):
            own = [n for n, a in enumerate(taken) if a == block]
            y = F.batch_norm(torch.cat([rows[n] for n in own]), None, None, *blocks.affine[block], training=True)
            for n, row in zip(own, y.split(1), strict=True):
                found[n] = row
        rows = found
    else:
        rows = [y + blocks.affine[a].view(-1, 1, 1) for y, a in zip(rows, taken, strict=True)]
    smooth = iter([away_from_kinks(y, blocks.pool) for y in rows])
    moving = iter([F.max_pool2d(y.relu(), 2) if blocks.pool else y.relu() for y in rows])
    stays = [a == blocks.num_blocks for a in actions.tolist()]
    outputs = torch.cat([row[None] if stay else next(moving) for row, stay in zip(x, stays, strict=True)])
    return outputs, torch.cat([torch.ones_like(row[None]) if stay else next(smooth)
                               for row, stay in zip(x, stays, strict=True)])  # fmt: skip


def gradients(blocks, x, y, target):
    inputs = [x] * x.requires_grad + list(blocks.parameters())
    return torch.autograd.grad((y * target).sum(), inputs, allow_unused=True)


def agree(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            scale = theirs.abs().max().item() + 1e-6
            torch.testing.assert_close(ours / scale, theirs / scale, rtol=1e-3, atol=2e-4)


def test_gradients_of_large_layers_agree_away_from_kinks():
    """172,800 outputs: some are so near to 0 that the rounding of two ways to compute them decides."""
    check_against_the_loop("shared", 570, 18, 4, (3, 16), 3, (20, 30), 2.0, *[False] * 4)


@pytest.mark.parametrize("norm", NORMS)
@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 20),
    num_blocks=st.integers(1, 5),
    channels=st.sampled_from([(3, 16), (16, 16), (16, 32), (5, 7), (32, 32)]),
    kernel_size=st.sampled_from([1, 3, 5]),
    shape=st.sampled_from([(4, 4), (5, 9), (12, 8), (20, 30)]),
    skew=st.floats(1, 6),
    pool=st.booleans(),
    last=st.booleans(),
    wanted=st.booleans(),
    compiled=st.booleans(),
)
def test_a_layer_equals_the_loop_over_samples(
    norm, seed, count, num_blocks, channels, kernel_size, shape, skew, pool, last, wanted, compiled
):
    check_against_the_loop(
        norm, seed, count, num_blocks, channels, kernel_size, shape, skew, pool, last, wanted, compiled
    )


def check_against_the_loop(
    norm, seed, count, num_blocks, channels, kernel_size, shape, skew, pool, last, wanted, compiled
):
    torch.manual_seed(seed)
    blocks = ConvBlocks(num_blocks, *channels, kernel_size=kernel_size, norm=norm, pool=pool)
    for parameter in [*blocks.affine, *(blocks.norm.parameters() if blocks.norm else [])]:
        nn.init.normal_(parameter)
    x = torch.randn(count, channels[0], *shape)
    x = (x.contiguous(memory_format=torch.channels_last) if last else x).requires_grad_(wanted)
    may_pass = not pool and channels[0] == channels[1]
    actions = (torch.rand(count) ** skew * (num_blocks + may_pass)).long()
    if (actions == num_blocks).all():
        actions[0] = 0
    expected, smooth = sample_by_sample(blocks, x, actions)
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(conv, "fastest_way", lambda *_: conv._SegmentConv)
        found = blocks(x, actions)
    agree([found], [expected])
    assert smooth.float().mean() > 0.5
    target = torch.randn_like(expected) * smooth
    agree(gradients(blocks, x, found, target), gradients(blocks, x, expected, target))


def test_the_compiled_loops_get_what_they_can_do(monkeypatch):
    def way(inputs=16, outputs=16, count=8, dtype=torch.float32, wanted=True):
        x = torch.zeros(count, inputs, 8, 8, dtype=dtype, requires_grad=wanted)
        return conv.fastest_way(x, np.array([count // 2] * 2), torch.zeros(outputs, inputs, 3, 3, dtype=dtype))

    assert way() is way(3, wanted=False) is conv._CompiledConv
    assert way(3) is way(outputs=8) is way(dtype=torch.float64) is way(dtype=torch.bfloat16) is conv._SegmentConv
    assert way(count=100) is conv._CompiledConv  # one thread
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert way(count=100) is conv._SegmentConv and way(count=2) is conv._CompiledConv


@pytest.mark.parametrize("norm", NORMS)
def test_gradients_equal_finite_differences(norm):
    torch.manual_seed(0)
    blocks = ConvBlocks(3, 2, 2, norm=norm).double()
    actions = torch.tensor([2, 0, 2, 1])
    x = torch.randn(4, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, *_: blocks(x, actions), (x, *blocks.parameters()))


def test_a_single_block_equals_the_plain_layer():
    torch.manual_seed(0)
    blocks = ConvBlocks(4, 3, 32)
    plain = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.MaxPool2d(2), nn.ReLU())
    plain[0].weight.data = blocks.blocks[2].detach().clone()
    x = torch.randn(6, 3, 8, 8)
    for training in (True, False):
        blocks.train(training), plain.train(training)
        torch.testing.assert_close(blocks(x, torch.full((6,), 2)), plain(x))
    torch.testing.assert_close(blocks.norm.state_dict(), plain[1].state_dict())


@pytest.mark.parametrize("norm", NORMS)
def test_blocks_without_samples_get_no_gradient_and_stay_bit_equal(norm):
    torch.manual_seed(0)
    blocks = ConvBlocks(5, 3, 16, norm=norm)
    before = {name: value.clone() for name, value in blocks.state_dict().items()}
    optimizer = torch.optim.SGD(blocks.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(2):
        blocks(torch.randn(6, 3, 8, 8), torch.tensor([1, 3, 3, 1, 3, 3])).sum().backward()
        optimizer.step()
    for block in range(5):
        for parameter in blocks.block_parameters(block):
            assert (parameter.grad is not None) == (block in (1, 3))
    for name, value in blocks.state_dict().items():
        if name.startswith(("blocks", "affine")):
            assert torch.equal(value, before[name]) == (name.split(".")[1] not in ("1", "3"))
        elif name.startswith("running"):
            assert torch.equal(value[[0, 2, 4]], before[name][[0, 2, 4]])
    assert blocks.active == {1, 3}
    assert {id(p) for p in blocks.active_parameters()} == {id(p) for b in (1, 3) for p in blocks.block_parameters(b)}


def test_the_shared_normalisation_belongs_to_no_block():
    blocks = ConvBlocks(3, 3, 4)
    owned = {id(parameter) for block in range(3) for parameter in blocks.block_parameters(block)}
    assert {name for name, p in blocks.named_parameters() if id(p) not in owned} == {"norm.weight", "norm.bias"}
    for norm in ("block", "group", "none"):
        blocks = ConvBlocks(3, 3, 4, norm=norm)
        owned = {id(parameter) for block in range(3) for parameter in blocks.block_parameters(block)}
        assert owned == {id(parameter) for parameter in blocks.parameters()}


@pytest.mark.parametrize("norm", NORMS)
def test_pass_leaves_the_sample_bit_equal(norm):
    blocks = ConvBlocks(2, 4, 4, norm=norm, pool=False)
    x = torch.randn(5, 4, 6, 6)
    outputs = blocks(x, torch.tensor([2, 0, 2, 1, 2]))
    assert torch.equal(outputs[[0, 2, 4]], x[[0, 2, 4]])
    assert not torch.equal(outputs[1], x[1])
    assert torch.equal(blocks(x, torch.full((5,), 2)), x)


@pytest.mark.parametrize("blocks", [ConvBlocks(2, 4, 4), ConvBlocks(2, 4, 5, pool=False)])
@pytest.mark.parametrize("actions", [[0, 2], [2, 2]])
def test_pass_is_refused_where_shapes_differ(blocks, actions):
    with pytest.raises(UsageError, match="PASS is allowed only where input and output have the same shape"):
        blocks(torch.randn(2, 4, 6, 6), torch.tensor(actions))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("actions", [[0], [0, 1, 2, 3], [0, 0, 3]])
@pytest.mark.parametrize("training", [True, False])
def test_few_samples_and_small_maps_stay_finite(norm, size, actions, training):
    torch.manual_seed(0)
    blocks = ConvBlocks(4, 16, 16, norm=norm).train(training)
    x = torch.randn(len(actions), 16, size, size, requires_grad=True)
    outputs = blocks(x, torch.tensor(actions))
    outputs.square().sum().backward()
    assert outputs.shape == (len(actions), 16, max(size // 2, 1), max(size // 2, 1))
    assert outputs.isfinite().all() and outputs.abs().max() < 100 and x.grad.isfinite().all()
    assert all(value.isfinite().all() for value in blocks.state_dict().values())


def test_few_values_move_a_blocks_statistics_a_little():
    torch.manual_seed(0)
    blocks = ConvBlocks(2, 4, 4, norm="block", pool=False, relu=False)
    x = torch.randn(1, 4, 1, 1)
    seen = F.conv2d(x, blocks.blocks[1], padding=1)[0, :, 0, 0]
    blocks(x, torch.tensor([1]))
    torch.testing.assert_close(blocks.running_mean[1], 0.1 / 16 * seen)
    torch.testing.assert_close(blocks.running_var[1], 1 + 0.1 / 16 * (seen.square() - 1))
    assert torch.equal(blocks.running_mean[0], torch.zeros(4)) and torch.equal(blocks.running_var[0], torch.ones(4))


@pytest.mark.parametrize("norm", NORMS)
def test_an_empty_batch_gives_an_empty_output(norm):
    blocks = ConvBlocks(2, 3, 5, norm=norm)
    x = torch.zeros(0, 3, 8, 8, requires_grad=True)
    outputs = blocks(x, torch.zeros(0, dtype=torch.long))
    outputs.sum().backward()
    assert outputs.shape == (0, 5, 4, 4) and x.grad.shape == (0, 3, 8, 8)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("actions", [[0, 1, 1], [1, 1, 1]])
def test_outputs_follow_the_precision(norm, actions):
    blocks, x = ConvBlocks(3, 4, 4, norm=norm), torch.randn(3, 4, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = blocks(x, torch.tensor(actions))
    assert outputs.dtype == torch.bfloat16
    outputs.float().sum().backward()
    assert blocks.blocks[1].grad.dtype == torch.float32
    torch.testing.assert_close(outputs.float(), blocks(x, torch.tensor(actions)), atol=0.1, rtol=0.05)
    with pytest.raises(UsageError, match=r"float32 got activations of torch\.float64"):
        blocks(x.double(), torch.tensor(actions))


@pytest.mark.parametrize("norm", NORMS)
def test_a_state_dict_brings_back_the_same_function(norm):
    torch.manual_seed(0)
    blocks, other = ConvBlocks(3, 3, 16, norm=norm), ConvBlocks(3, 3, 16, norm=norm)
    x, actions = torch.randn(9, 3, 8, 8), torch.arange(9) % 3
    blocks(x, actions)
    other.load_state_dict(blocks.state_dict())
    assert torch.equal(blocks.eval()(x, actions), other.eval()(x, actions))


def test_outputs_may_be_changed_in_place():
    outputs = ConvBlocks(2, 3, 16, norm="none", pool=False, relu=False)(torch.zeros(4, 3, 5, 5), torch.arange(4) % 2)
    outputs.add_(1)
    outputs.sum().backward()


def test_nan_is_not_hidden():
    blocks = ConvBlocks(2, 3, 16, norm="none")
    with torch.no_grad():
        blocks.blocks[1][2, 1, 1, 1] = torch.nan
    outputs = blocks(torch.zeros(3, 3, 8, 8), torch.tensor([0, 1, 0]))
    assert outputs.isnan().flatten(2).any(2).nonzero().tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_blocks": 0}, "num_blocks is 0"),
        ({"in_channels": 0}, "in_channels of a layer is 0"),
        ({"out_channels": -1}, "out_channels of a layer is -1"),
        ({"kernel_size": 2}, "kernel_size of a layer is 2; give an odd number"),
        ({"norm": "batch"}, "norm of a layer is 'batch'; give one of shared, block, group, none"),
    ],
)
def test_impossible_layers_are_refused(given, message):
    with pytest.raises(UsageError, match=message):
        ConvBlocks(**{"num_blocks": 2, "in_channels": 3, "out_channels": 4, **given})


@pytest.mark.parametrize("shape", [(2, 4, 8, 8), (2, 3, 8), (3, 8, 8)])
def test_activations_that_do_not_fit_are_refused(shape):
    with pytest.raises(UsageError, match=r"give \(N, 3, height, width\)"):
        ConvBlocks(2, 3, 4)(torch.zeros(shape), torch.zeros(shape[0], dtype=torch.long))


@pytest.mark.parametrize(("shape", "counts"), [((4, 8, 5, 5), [1, 3]), ((4, 16, 5, 5), [4, 4]), ((4, 16, 5), [1, 3])])
def test_convolutions_refuse_what_does_not_fit(shape, counts):
    with pytest.raises(UsageError, match=r"give \(N, 16, height, width\) and N samples"):
        conv.routed_conv(torch.zeros(shape), np.array(counts), [torch.zeros(16, 16, 3, 3)] * 2)


def test_module_blocks_send_channels_last_pictures_and_keep_their_gradients():
    torch.manual_seed(0)
    blocks = ModuleBlocks([nn.Conv2d(3, 4, 3) for _ in range(3)])
    x = torch.randn(6, 3, 5, 5).contiguous(memory_format=torch.channels_last).requires_grad_()
    for actions in ([0, 2, 1, 0, 2, 2], [1] * 6):
        found = blocks(x, torch.tensor(actions))
        expected = torch.cat([blocks.blocks[a](row[None]) for row, a in zip(x, actions, strict=True)])
        target = torch.randn_like(expected)
        agree([found], [expected])
        agree(gradients(blocks, x, found, target), gradients(blocks, x, expected, target))
