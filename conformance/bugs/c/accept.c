SHARE {
    const int64_t vocab = b->p_dims[1];
    EACH(n, b->p_dims[0]) {
        const int64_t at = n * vocab + b->tokens[n];
        b->accepted[n] = b->q[at] > 0 && b->u[n] * b->q[at] < b->p[at];
    }
}
