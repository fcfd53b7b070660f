"""Resources as users write them in YAML, and the immutable views of planner and rebalancers.

Nothing is imported here: sidecars and rebalancers import `views` alone and should not pay for the rest.

Modules:
    columns               column types, and the rules of a table's schema
    conditions            conditions and progress in statuses
    crd                   generates the CustomResourceDefinitions
    json_schema           the models' JSON schema with references resolved
    partitionassignment   PartitionAssignment: a slice of up to 64 partitions
    quantities            sizes, rates and durations
    rebalanceplan         RebalancePlan: a plan to inspect, to approve, or to preview
    resource_base         what every resource shares: strictness, metadata, rules over several fields
    resource_loading      reads and validates resources from YAML or data
    resource_reference    generates the field tables of docs/resources.md
    storecluster          StoreCluster: the stores that hold tables
    table                 Table: partitions, replicas, schema and movement
    update_rules          the changes that an existing resource allows
    validation_errors     pydantic's errors as messages with field, value and remedy
    views                 value types of planner and rebalancers
    yamltree              YAML as plain data with the line of every field
"""
