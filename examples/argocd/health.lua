-- Health of StoreClusters, Tables, PartitionAssignments and RebalancePlans for Argo CD.
-- Stalled is Degraded, a pause or a plan that waits for its approval is Suspended, everything under way is Progressing.
local health = { status = "Progressing", message = "the operator has not reported a status yet" }
local status = obj.status
if status == nil or status.conditions == nil then
  return health
end

local observed = status.observedGeneration or 0
if obj.metadata.generation ~= nil and observed ~= obj.metadata.generation then
  health.message = "the operator has not seen generation " .. tostring(obj.metadata.generation) .. " yet"
  return health
end

local conditions = {}
for _, condition in ipairs(status.conditions) do
  conditions[condition.type] = condition
end

local function is_true(kind)
  return conditions[kind] ~= nil and conditions[kind].status == "True"
end

local function tell(kind)
  local condition = conditions[kind]
  health.message = condition.reason
  if condition.message ~= nil and condition.message ~= "" then
    health.message = condition.reason .. ": " .. condition.message
  end
  return health
end

local waits = { Paused = true, AwaitingApproval = true }

if is_true("Stalled") then
  health.status = "Degraded"
  return tell("Stalled")
end
if is_true("Reconciling") then
  if waits[conditions.Reconciling.reason] then
    health.status = "Suspended"
  end
  return tell("Reconciling")
end
if conditions.Progressing ~= nil and conditions.Progressing.reason == "Paused" then
  health.status = "Suspended"
  return tell("Progressing")
end
if is_true("Degraded") then
  health.status = "Degraded"
  return tell("Degraded")
end
if is_true("Ready") then
  health.status = "Healthy"
  return tell("Ready")
end
health.message = "the operator has not said whether it is ready"
return health
