SHARE {
    const int64_t vocab = b->p_dims[1];
    EACH(n, b->p_dims[0]) {
        const double *p = b->p + n * vocab, *q = b->q + n * vocab;
        double *out = b->out + n * vocab;
        double whole = 0;
        for (int64_t i = 0; i < vocab; i++) whole += fmax(0, p[i] - q[i]);
        const int unchanged = whole == 0 || q[b->tokens[n]] == 0;
        for (int64_t i = 0; i < vocab; i++)
            out[i] = unchanged ? p[i] : fmax(0, p[i] - q[i]) / whole;
    }
}
