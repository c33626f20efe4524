SHARE {
    const int64_t tokens = b->x_dims[0], hidden = b->x_dims[1], neurons = b->mask_dims[1];
    const int64_t count = b->count[0];
    EACH(i, neurons) for (int64_t t = 0; t < tokens; t++) b->out[t * neurons + i] = 0;
    for (int64_t n = 0; n < count; n++) {
        const int64_t neuron = b->rows[n];
        if (neuron < neurons * thread / n_threads || neuron >= neurons * (thread + 1) / n_threads) continue;
        const uint8_t *row = b->weight + b->slots[neuron] * b->weight_dims[1];
        for (int64_t t = 0; t < tokens; t++) {
            if (!b->mask[t * neurons + neuron]) continue;
            double sum = 0;
            for (int64_t i = 0; i < hidden; i++) sum += (double)b->x[t * hidden + i] * element(row, i);
            b->out[t * neurons + neuron] = (float)sum;
        }
    }
}
