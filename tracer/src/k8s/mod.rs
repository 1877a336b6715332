//! The only place that knows kube: watches EndpointSlices, Services, pods and nodes.
