SHARE {
    const int64_t vocab = b->logits_dims[0];
    if (thread) return;
    int64_t best = 0;
    for (int64_t i = 1; i < vocab; i++)
        if (b->logits[i] > b->logits[best]) best = i;
    b->token[0] = (int32_t)best;
}
