SHARE {
    const int64_t tokens = b->x_dims[0], hidden = b->x_dims[1];
    const double eps = b->eps;
    EACH(t, tokens) {
        const float *x = b->x + t * hidden, *weight = b->weight;
        float *out = b->out + t * hidden;
        double sum = 0;
        for (int64_t i = 0; i < hidden; i++) sum += (double)x[i] * x[i];
        double factor = 1 / sqrt(sum / hidden + eps);
        for (int64_t i = 0; i < hidden; i++) out[i] = (float)(x[i] * factor * weight[i]);
    }
}
