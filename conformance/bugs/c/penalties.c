SHARE {
    const int64_t vocab = b->logits_dims[0];
    EACH(i, vocab) {
        double x = b->logits[i];
        const int64_t count = b->counts[i];
        if (b->repeated[i] > 0) x = x <= 0 ? x * b->repetition : x / b->repetition;
        if (count > 0) x = x - count * b->frequency - b->presence;
        b->out[i] = (float)x;
    }
}
