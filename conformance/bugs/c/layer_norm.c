SHARE {
    const int64_t hidden = b->x_dims[1];
    EACH(t, b->x_dims[0]) {
        const float *x = b->x + t * hidden;
        float *out = b->out + t * hidden;
        double sum = 0, squares = 0;
        for (int64_t i = 0; i < hidden; i++) sum += x[i];
        const double mean = sum / hidden;
        for (int64_t i = 0; i < hidden; i++) squares += (x[i] - mean) * (x[i] - mean);
        const double factor = 1 / sqrt(squares / hidden + b->eps);
        for (int64_t i = 0; i < hidden; i++)
            out[i] = (float)((x[i] - mean) * factor * b->weight[i] + b->bias[i]);
    }
}
