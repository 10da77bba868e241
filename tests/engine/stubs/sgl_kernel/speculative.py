"""Stand-in, in plain PyTorch, for the kernel that NGRAM alone takes from this module."""


def reconstruct_indices_from_tree_mask(
    tree_mask, lengths, positions, index, next_token, next_sibling, batch_size, nodes
):
    """Where each node of each request's tree stands, its first child and its next sibling (-1: it has none).

    `tree_mask` says which nodes are a node's ancestors (itself, as the last of them, does not count).
    """
    masks = tree_mask.view(-1)[: batch_size * nodes * nodes].view(batch_size, nodes, nodes).bool().tolist()
    positions, index, next_token, next_sibling = (
        tensor.view(-1) for tensor in (positions, index, next_token, next_sibling)
    )
    for request, (mask, length) in enumerate(zip(masks, lengths.tolist(), strict=True)):
        ancestors = [[other for other in range(node) if mask[node][other]] for node in range(nodes)]
        parents = [line[-1] if line else -1 for line in ancestors]
        for node in range(nodes):
            children = [other for other in range(nodes) if parents[other] == node]
            siblings = [other for other in range(node + 1, nodes) if parents[other] == parents[node] != -1]
            at = request * nodes + node
            positions[at] = length + len(ancestors[node])
            index[at] = at
            next_token[at] = children[0] if children else -1
            next_sibling[at] = siblings[0] if siblings else -1
