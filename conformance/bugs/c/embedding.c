SHARE {
    const int64_t hidden = b->out_dims[1];
    EACH(t, b->tokens_dims[0]) {
        const int64_t token = b->tokens[t];
        const uint8_t *row = b->weight + token * b->weight_dims[1];
        float *out = b->out + t * hidden;
        for (int64_t i = 0; i < hidden; i++) out[i] = element(row, i);
    }
}
