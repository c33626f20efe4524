SHARE {
    const int64_t tokens = b->a_dims[0], neurons = b->a_dims[1], hidden = b->out_dims[1];
    const int64_t count = b->count[0];
    EACH(i, hidden) {
        for (int64_t t = 0; t < tokens; t++) {
            double sum = 0;
            for (int64_t n = 0; n < count; n++) {
                const int64_t neuron = b->rows[n], slot = b->slots[neuron];
                sum += (double)b->a[t * neurons + neuron] * element(b->weight + slot * b->weight_dims[1], i);
            }
            b->out[t * hidden + i] = (float)sum;
        }
    }
}
