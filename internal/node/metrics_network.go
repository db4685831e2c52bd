package node

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/perigee-mq/perigee/proxy/transport"
)

// observeNetwork makes readable what happens to the connections of clients. The
// names are constants; creating an instrument of a valid name cannot fail.
func (m *metrics) observeNetwork(limit *transport.Limit, credentials *transport.Credentials, keyring *transport.Keyring) {
	because := func(reason string) metric.MeasurementOption {
		return metric.WithAttributes(attribute.String("reason", reason))
	}
	_, _ = m.meter.Int64ObservableGauge("perigee.connections", metric.WithDescription("Open connections of clients."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(limit.Open())
			return nil
		}))
	_, _ = m.meter.Int64ObservableGauge("perigee.connections.limit", metric.WithDescription("How many may be open at once."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(limit.Most())
			return nil
		}))
	_, _ = m.meter.Int64ObservableCounter("perigee.connections.refused",
		metric.WithDescription("Connections closed before they served calls: above the limit, or not speaking what the port serves."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(int64(limit.Refused()), because("limit"))
			o.Observe(int64(credentials.Refused()), because("protocol"))
			return nil
		}))
	if keyring == nil {
		return
	}
	_, _ = m.meter.Int64ObservableCounter("perigee.tls.reloads", metric.WithDescription("Changed certificates taken over."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(int64(keyring.Reloads()))
			return nil
		}))
	_, _ = m.meter.Int64ObservableCounter("perigee.tls.reload.failures",
		metric.WithDescription("Looks at certificates that could not be used; the last good ones stay."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(int64(keyring.Failures()))
			return nil
		}))
	_, _ = m.meter.Int64ObservableGauge("perigee.tls.certificate.expiry",
		metric.WithDescription("When the first of the certificates in use expires, in seconds since 1970."), metric.WithUnit("s"),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(keyring.Expires().Unix())
			return nil
		}))
}
