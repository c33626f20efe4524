SHARE {
    const double threshold = b->threshold;
    EACH(i, b->logits_dims[0] * b->logits_dims[1]) b->mask[i] = b->logits[i] >= threshold;
}
