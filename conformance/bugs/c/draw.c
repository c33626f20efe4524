SHARE {
    const int64_t vocab = b->logits_dims[0];
    if (thread) return;
    double most = -INFINITY, whole = 0, running = 0;
    for (int64_t i = 0; i < vocab; i++) most = fmax(most, b->logits[i]);
    for (int64_t i = 0; i < vocab; i++) whole += exp(b->logits[i] - most);
    int64_t token = 0;
    for (int64_t i = 0; i < vocab; i++) {
        const double power = exp(b->logits[i] - most);
        if (power == 0) continue;
        token = i;
        running += power;
        if (running > b->u * whole) break;
    }
    b->token[0] = (int32_t)token;
}
