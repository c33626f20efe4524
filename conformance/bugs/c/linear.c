SHARE {
    const int64_t tokens = b->x_dims[0], hidden = b->x_dims[1], outs = b->out_dims[1];
    EACH(o, outs) {
        const uint8_t *row = b->weight + o * b->weight_dims[1];
        for (int64_t t = 0; t < tokens; t++) {
            const float *x = b->x + t * hidden;
            double sum = 0;
            for (int64_t i = 0; i < hidden; i++) sum += (double)x[i] * element(row, i);
            b->out[t * outs + o] = (float)sum;
        }
    }
}
